//! Model folders by name: a local folder as it is, or `organisation/name[@revision]` from a hub.
