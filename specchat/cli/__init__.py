"""The command line. Heavy modules are imported only by the command that needs them."""
