"""`covspec simulate`: the same devices against modelled edges on a virtual clock."""
