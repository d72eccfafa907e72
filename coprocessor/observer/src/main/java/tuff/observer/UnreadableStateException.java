package tuff.observer;

import java.io.IOException;

/** The file with the state is damaged, or of another version; the message says why. */
final class UnreadableStateException extends IOException {

  private static final long serialVersionUID = 1L;

  UnreadableStateException(String message) {
    super(message);
  }
}
