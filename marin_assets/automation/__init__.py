"""What happens by itself: schedules and sensors that decide, and the assets that they ask for."""
