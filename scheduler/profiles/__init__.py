"""Profiles that come with Tandem: JSON files, found by what they were taken of (see library.py)."""
