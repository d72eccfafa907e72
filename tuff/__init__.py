"""Tuff: publish a message if, and only if, your own change commits."""
