"""Code that lives inside the user's processes. Standard library only; a failure here never harms the job.

`startup` runs in every Python below the cluster; everything else is imported at the first pause or not at all.
"""
