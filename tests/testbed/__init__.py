"""Several hosts on one machine: names, addresses, clocks and processes of their own, joined by shaped links."""
