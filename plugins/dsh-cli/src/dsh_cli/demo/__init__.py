"""
`dsh demo`: a scripted model drives the real loop, real tools, the real gate and a real log; then a real kill.
"""
