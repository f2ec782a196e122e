"""What programs and notebooks import: `swamp.open`, what it gives, and the file system `swamp://`."""
