"""LevelDB's files: opened safely, scanned with every error raised, and parsed without LevelDB."""
