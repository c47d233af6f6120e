"""`covspec link`: a wireless link in user space, which holds back the bytes of real connections."""
