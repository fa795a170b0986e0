"""What other packages' callers know, under their names, over gumball. Each module here stands for one of them."""
