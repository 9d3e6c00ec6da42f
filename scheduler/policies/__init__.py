"""Scheduling policies, one file each, named after their paper or system."""
