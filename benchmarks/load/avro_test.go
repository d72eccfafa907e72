package main

import (
	"bytes"
	"encoding/hex"
	"testing"
)

func TestRequestsHaveTheWorkedBytesOfTheProtocol(t *testing.T) {
	publish := publishRequest([][]byte{[]byte("a"), []byte("bc")})
	poll := consumeRequest(nil, 10)

	if got := hex.EncodeToString(publish); got != "0204026104626300" {
		t.Error(got)
	}
	if got := hex.EncodeToString(poll); got != "0401001402" {
		t.Error(got)
	}
}

func TestAReplyIsReadInBothKindsOfBlocks(t *testing.T) {
	plain := []byte{2, 4, 'i', 'd', 2, 'x', 0}
	sized := []byte{1, 12, 4, 'i', 'd', 2, 'x', 0}

	for _, reply := range [][]byte{plain, sized} {
		var ids, payloads bytes.Buffer
		count, err := messagesOf(reply, func(id, payload []byte) {
			ids.Write(id)
			payloads.Write(payload)
		})
		if err != nil || count != 1 || ids.String() != "id" || payloads.String() != "x" {
			t.Error(count, err, ids.String(), payloads.String())
		}
	}
}

func TestATruncatedReplyIsAnError(t *testing.T) {
	whole := []byte{2, 4, 'i', 'd', 2, 'x', 0}
	for cut := 0; cut < len(whole); cut++ {
		if _, err := messagesOf(whole[:cut], func(_, _ []byte) {}); err == nil {
			t.Errorf("%d bytes of the reply are taken for all of it", cut)
		}
	}
}
