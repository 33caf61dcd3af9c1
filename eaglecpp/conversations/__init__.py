# SPDX-License-Identifier: MIT
"""Conversations that are kept: on the disk, and with the model they were held with."""
