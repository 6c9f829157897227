"""What tests share: reference implementations, small networks and images, the browser."""
