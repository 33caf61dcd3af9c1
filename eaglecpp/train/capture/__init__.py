# SPDX-License-Identifier: MIT
"""What is captured from the target: its answers and conversations, its layers' features, and their cache."""
