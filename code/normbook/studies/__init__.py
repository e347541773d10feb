"""What one chapter sets up, a room each: networks, data and measurements that no other one needs.

§1 `why_normalize`, §6 `deep_transformers`, §7 `residuals`, §8 `starts`, §9 `widths`, §10
`norm_free`, §11 `engineering`. A study imports the engine's door and `normbook.lab`, never another
study; what a second chapter needs moves to `lab`.
"""
