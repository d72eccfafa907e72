package tuff.observer;

import java.io.IOException;

/** A file is no whole state of this version; the message says why. */
final class UnreadableStateException extends IOException {

  private static final long serialVersionUID = 1L;

  UnreadableStateException(String message) {
    super(message);
  }
}
