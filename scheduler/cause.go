package scheduler

// cause is a number for why a cluster is not chosen: there may be many clusters, and there are few causes.
type cause uint16

const (
	none cause = iota // it is chosen
	leaving
	notServed
	perhapsNotServed
	notNear
	evicting
	notBest
	noReplica
	described // from here on those that name something, as the task says them
)

var words = [described]string{
	leaving:          "cluster(s) are being removed",
	notServed:        "cluster(s) did not have the API resource",
	perhapsNotServed: "cluster(s) did not tell all APIs that they serve",
	notNear:          "cluster(s) did not match the placement cluster affinity constraint",
	evicting:         "cluster(s) is in the process of eviction",
	notBest:          "cluster(s) were not among the best that the spread constraints allow",
	noReplica:        "cluster(s) got no replica of the division",
}

// say makes a cause of words.
func (j *task) say(why string) cause {
	j.said = append(j.said, why)
	return described + cause(len(j.said)-1)
}

// reasons are the causes that there are, in words.
func (j *task) reasons(why []cause) []Reason {
	n := 0
	for _, c := range why {
		if c != none {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	out := make([]Reason, 0, n)
	for at, c := range why {
		switch {
		case c >= described:
			out = append(out, Reason{j.of[at].Name, j.said[c-described]})
		case c != none:
			out = append(out, Reason{j.of[at].Name, words[c]})
		}
	}
	return out
}
