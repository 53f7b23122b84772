"""Charts and pictures as rows of terminal cells. Knows no file and no widget."""
