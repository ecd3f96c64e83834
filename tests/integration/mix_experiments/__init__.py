"""What the lab on a bucket makes; the test copies this package into a checkout of its own, and edits it there as a curator would."""
