package tuff.observer;

/**
 * What retention must know of a topic. The generation is negative while the topic is deleted;
 * nothing before the floor is ever shown again.
 */
record TopicRule(int generation, long ttlS, Place floor) {}
