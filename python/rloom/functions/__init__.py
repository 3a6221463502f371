"""Functions of users: rewards, environments and parts of algorithms, in processes of their own."""
