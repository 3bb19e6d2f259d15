"""What can be known of a run before it costs anything: what is wrong, and how much memory it will take."""
