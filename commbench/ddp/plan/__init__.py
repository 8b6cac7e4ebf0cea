"""What a training sweep is made of, as plain data: nothing here needs torch."""
