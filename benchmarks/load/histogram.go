package main

import "math/bits"

const (
	subBits = 6 // 64 buckets in each power of two: a value is known to 1.6 %
	buckets = (64 - subBits + 1) << subBits
)

// histogram counts durations in buckets of constant relative width.
type histogram struct {
	counts [buckets]int64
	total  int64
	max    int64
}

func bucketOf(ns int64) int {
	if ns < 1<<subBits {
		if ns < 0 {
			return 0
		}
		return int(ns)
	}
	shift := bits.Len64(uint64(ns)) - subBits - 1
	return shift<<subBits + int(ns>>shift)
}

// upperOf is the largest value that falls into the bucket.
func upperOf(bucket int) int64 {
	if bucket < 2<<subBits {
		return int64(bucket)
	}
	shift := bucket>>subBits - 1
	return (int64(bucket-shift<<subBits)+1)<<shift - 1
}

func (h *histogram) add(ns int64) {
	h.counts[bucketOf(ns)]++
	h.total++
	if ns > h.max {
		h.max = ns
	}
}

func (h *histogram) merge(other *histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
	h.total += other.total
	if other.max > h.max {
		h.max = other.max
	}
}

// quantile is the smallest bucket end that at least this share of the values does not pass.
func (h *histogram) quantile(share float64) int64 {
	rank, seen := int64(share*float64(h.total)), int64(0)
	for i, n := range h.counts {
		if seen += n; seen > rank {
			return upperOf(i)
		}
	}
	return h.max
}

// points are the buckets that hold something, as [upper end in microseconds, count].
func (h *histogram) points() [][2]float64 {
	found := [][2]float64{}
	for i, n := range h.counts {
		if n > 0 {
			found = append(found, [2]float64{float64(upperOf(i)) / 1e3, float64(n)})
		}
	}
	return found
}
