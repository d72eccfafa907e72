package main

import "errors"

var errTruncated = errors.New("the Avro reply is truncated")

// The three Avro forms of the message endpoints (protocol §4), written by hand.

func zigzag(b []byte, v int64) []byte {
	u := uint64(v<<1) ^ uint64(v>>63)
	for u >= 0x80 {
		b = append(b, byte(u)|0x80)
		u >>= 7
	}
	return append(b, byte(u))
}

func unzigzag(b []byte) (value int64, rest []byte, err error) {
	var u uint64
	for i := 0; i < len(b) && i < 10; i++ {
		u |= uint64(b[i]&0x7f) << (7 * i)
		if b[i] < 0x80 {
			return int64(u>>1) ^ -int64(u&1), b[i+1:], nil
		}
	}
	return 0, nil, errTruncated
}

// publishRequest has no transaction pointer.
func publishRequest(payloads [][]byte) []byte {
	b := zigzag([]byte{2}, int64(len(payloads)))
	for _, payload := range payloads {
		b = append(zigzag(b, int64(len(payload))), payload...)
	}
	return append(b, 0)
}

// consumeRequest starts after an id, or at the beginning where that is nil.
func consumeRequest(after []byte, limit int) []byte {
	b := []byte{4, 1}
	if after != nil {
		b = append(zigzag([]byte{0}, int64(len(after))), after...)
		b = append(b, 0)
	}
	return append(zigzag(append(b, 0), int64(limit)), 2)
}

// messagesOf calls each for every message of a reply, and returns how many there are.
func messagesOf(b []byte, each func(id, payload []byte)) (int, error) {
	count := 0
	for {
		n, rest, err := unzigzag(b)
		if err != nil || n == 0 {
			return count, err
		}
		if n < 0 { // a block that states its size as well
			n = -n
			if _, rest, err = unzigzag(rest); err != nil {
				return count, err
			}
		}
		b = rest
		for ; n > 0; n-- {
			var id, payload []byte
			if id, b, err = bytesOf(b); err != nil {
				return count, err
			}
			if payload, b, err = bytesOf(b); err != nil {
				return count, err
			}
			each(id, payload)
			count++
		}
	}
}

func bytesOf(b []byte) (value, rest []byte, err error) {
	n, rest, err := unzigzag(b)
	if err != nil {
		return nil, nil, err
	}
	if n < 0 || n > int64(len(rest)) {
		return nil, nil, errTruncated
	}
	return rest[:n], rest[n:], nil
}
