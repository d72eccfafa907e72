package main

import (
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
)

func TestTheDocumentedCall(t *testing.T) {
	body := packArray(packString(packMap(callee(opPublish, "shop", "orders"), 1), "messages"), 1)
	found := hex.EncodeToString(appendCall(nil, 1, packBytes(body, []byte("hi"))))
	shown := "00000021 96 01 01 01 92 a473686f70 a66f7264657273 c0 81 a86d65737361676573 91 c4026869"
	if expected := strings.ReplaceAll(shown, " ", ""); found != expected {
		t.Fatalf("%s, not %s", found, expected)
	}
}

func TestTheDocumentedReply(t *testing.T) {
	data, _ := hex.DecodeString("950201ccc880c0")
	found, err := parseFrame(data)
	expected := []any{int64(2), int64(1), int64(200), map[string]any{}, nil}
	if err != nil || !reflect.DeepEqual(found, expected) {
		t.Fatalf("%v, %v", found, err)
	}
}

func TestEveryLengthIsReadAsItWasWritten(t *testing.T) {
	for _, length := range []int{0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536} {
		text := strings.Repeat("x", length)
		b := packBytes(packString(packArray(nil, 3), text), []byte(text))
		found, err := parseFrame(packNumber(b, uint64(length)))
		if err != nil || !reflect.DeepEqual(found, []any{text, []byte(text), int64(length)}) {
			t.Fatalf("length %d: %v", length, err)
		}
	}
}

func TestAFrameThatIsNotWholeIsAnError(t *testing.T) {
	whole, _ := hex.DecodeString("950201ccc880c0")
	for length := range whole {
		if _, err := parseFrame(whole[:length]); err == nil {
			t.Fatalf("%d bytes were accepted", length)
		}
	}
}
