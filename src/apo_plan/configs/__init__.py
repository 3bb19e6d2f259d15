"""Configurations of `apo preflight`: its primary one, and the rates of devices."""
