"""The HTTP routes: each module answers the paths of one noun, given the Service."""
