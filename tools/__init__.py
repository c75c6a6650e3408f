"""Things run by hand or by make, never imported by the package."""
