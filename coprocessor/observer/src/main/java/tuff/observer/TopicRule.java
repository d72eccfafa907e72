package tuff.observer;

/**
 * The parts of a topic that decide on the retention of its rows. The generation is negative while
 * the topic is deleted; no message before the floor is ever shown again.
 */
record TopicRule(int generation, long ttlS, Offset floor) {}
