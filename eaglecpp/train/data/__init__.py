# SPDX-License-Identifier: MIT
"""Files of texts and conversations to token lists, and the draft vocabulary. numpy only."""
