package main

import "testing"

func TestEveryValueLiesInItsBucket(t *testing.T) {
	for _, ns := range []int64{0, 1, 63, 64, 65, 127, 128, 129, 1000, 1_000_003, 1 << 40} {
		bucket := bucketOf(ns)
		if ns > upperOf(bucket) || bucket > 0 && ns <= upperOf(bucket-1) {
			t.Errorf("%d is in bucket %d, which ends at %d", ns, bucket, upperOf(bucket))
		}
	}
}

func TestABucketIsNarrow(t *testing.T) {
	for _, ns := range []int64{100, 10_000, 12_345_678} {
		if upper := upperOf(bucketOf(ns)); float64(upper-ns) > 0.016*float64(ns) {
			t.Errorf("%d is told as %d", ns, upper)
		}
	}
}

func TestQuantilesOfAThousandValues(t *testing.T) {
	var h histogram
	for i := int64(1); i <= 1000; i++ {
		h.add(i)
	}

	for share, exact := range map[float64]int64{0.5: 501, 0.99: 991, 1: 1000} {
		if got := h.quantile(share); got < exact || float64(got) > 1.02*float64(exact) {
			t.Errorf("quantile %v is %d, and exactly %d", share, got, exact)
		}
	}
}
