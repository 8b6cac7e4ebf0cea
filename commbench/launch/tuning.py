"""The stages of tuning: the network, a calibration, the promising settings in rounds, the winner in fresh launches."""
