"""Two lanes as threads on disjoint cores, with torch: the backend where there is no GPU."""
