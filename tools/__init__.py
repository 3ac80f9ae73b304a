"""What developers of this project run by hand."""
