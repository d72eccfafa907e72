"""The peers. Each runs with its strongest guarantees, and some also as shipped."""
