package tuff.observer;

/** How many rows a pass dropped, inverted, and could not read, and so kept. */
record Counts(long dropped, long inverted, long unreadable) {

  static final Counts NONE = new Counts(0, 0, 0);
}
