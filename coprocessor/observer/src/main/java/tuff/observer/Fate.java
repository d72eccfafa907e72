package tuff.observer;

/** What becomes of a row. */
enum Fate {
  KEEP,
  DROP,
  INVERT
}
