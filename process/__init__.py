"""What only the server process needs: settings, the clock, HTTP, the bridge between the rooms."""
