package tuff.observer;

/** The numbers of rows that a pass dropped, inverted, and kept since it could not read them. */
record Counts(long dropped, long inverted, long unreadable) {

  static final Counts NONE = new Counts(0, 0, 0);
}
