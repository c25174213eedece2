"""The laboratory: replay recorded picks through many cache policies, pools and sizes, and say what each would have hit."""
