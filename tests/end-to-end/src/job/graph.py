"""Compares the results of all graph jobs with networkx: EDGES RANKS CONVERGED COMPONENTS LEVELS DISTANCES TRIANGLES."""

import sys

import networkx as nx

SOURCE = 6


def read(path, kind):
    with open(path) as lines:
        pairs = [line.split("\t") for line in lines]
    return {int(vertex): kind(value) for vertex, value in pairs}


def iterate(graph, iterations):
    """Returns the ranks after so many iterations in floating point."""
    ranks = dict.fromkeys(graph, 1 / len(graph))
    for _ in range(iterations):
        dangling = sum(rank for vertex, rank in ranks.items() if graph.out_degree(vertex) == 0)
        new = dict.fromkeys(graph, (0.15 + 0.85 * dangling) / len(graph))
        for vertex, rank in ranks.items():
            for other in graph.successors(vertex):
                new[other] += 0.85 * rank / graph.out_degree(vertex)
        ranks = new
    return ranks


def distance(ours, theirs):
    assert ours.keys() == theirs.keys(), "other vertices"
    return sum(abs(ours[vertex] - theirs[vertex]) for vertex in theirs)


edges, ranks, converged, components, levels, distances, triangles = sys.argv[1:]
graph = nx.DiGraph()
with open(edges) as lines:
    for line in lines:
        if line.startswith("#"):
            continue
        source, target, weight = map(int, line.split())
        if graph.has_edge(source, target):
            weight = min(weight, graph[source][target]["weight"])
        graph.add_edge(source, target, weight=weight)

assert distance(read(ranks, float), iterate(graph, 20)) <= 1e-9, "ranks after 20 iterations"
exact = nx.pagerank(graph, alpha=0.85, tol=1e-15, max_iter=1000, weight=None)
assert distance(read(converged, float), exact) <= 1e-9, "converged ranks"
expected = {v: min(part) for part in nx.weakly_connected_components(graph) for v in part}
assert read(components, int) == expected, "components"
assert read(levels, int) == nx.single_source_shortest_path_length(graph, SOURCE), "levels"
assert read(distances, int) == nx.single_source_dijkstra_path_length(graph, SOURCE), "distances"
simple = nx.Graph(graph.to_undirected())
simple.remove_edges_from(list(nx.selfloop_edges(simple)))
assert read(triangles, int) == nx.triangles(simple), "triangles"
