"""What share consumers and the server say of leased messages, by their names in bodies (protocol
§3.12)."""

from enum import StrEnum


class LeaseAction(StrEnum):
    """What a consumer does with a message that it leased."""

    ACCEPT = "accept"
    RELEASE = "release"
    REJECT = "reject"
    RENEW = "renew"


class AttemptReport(StrEnum):
    """Whether the consumer has begun to process the message that it renews or releases."""

    BEGUN = "begun"
    NONE = "none"
    UNKNOWN = "unknown"  # it began one of several, and can't say which


class LeaseOutcome(StrEnum):
    """What an acknowledgement did."""

    ACCEPTED = "accepted"
    RELEASED = "released"
    REJECTED = "rejected"
    RENEWED = "renewed"
    EXPIRES = "expires"  # nothing: a released message would expire before its delay is over
    LEASE_LOST = "lease_lost"  # nothing
