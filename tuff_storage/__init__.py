"""Files, LevelDB and HBase, as the tables of `tuff`, the server and its tools use them."""
