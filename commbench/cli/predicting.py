"""The command that tells what nobody has measured: predict."""
