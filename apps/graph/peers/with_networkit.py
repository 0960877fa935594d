"""The algorithms of networkit, for comparison: `with_networkit.py FILE.wel SOURCE` obeys lines on its standard
input as the benchmark of our graph applications does."""

import sys
import time

import networkit as nk

ITERATIONS = 20


def load(file, weighted):
    reader = nk.graphio.EdgeListReader(" ", 0, "#", True, False)
    graph = reader.read(file)
    return graph if weighted else nk.graphtools.toUnweighted(graph)


def algorithm(graph, name, source):
    """Returns the algorithm, and a function that returns its values by vertex."""
    if name == "pagerank":
        found = nk.centrality.PageRank(graph, 0.85, 1e-30)
        found.maxIterations = ITERATIONS
        return found, found.scores
    if name == "cc":
        found = nk.components.ConnectedComponents(graph)
        return found, lambda: [found.componentOfNode(vertex) for vertex in range(graph.numberOfNodes())]
    if name == "bfs":
        found = nk.distance.BFS(graph, source, False)
        return found, found.getDistances
    if name == "sssp":
        found = nk.distance.Dijkstra(graph, source, False)
        return found, found.getDistances
    raise ValueError(f"{name} is no algorithm here")


def main():
    file, source = sys.argv[1], int(sys.argv[2])
    nk.setNumberOfThreads(1)
    with open(file, encoding="ascii") as lines:
        print("edges", sum(1 for _ in lines), flush=True)
    loaded, values = (None, None), None
    for line in sys.stdin:
        command, argument = line.split()
        if command == "run":
            if loaded[0] != argument:
                loaded = (argument, load(file, argument == "sssp"))
            found, values = algorithm(loaded[1], argument, source)
            begun = time.perf_counter()
            found.run()
            print("time", time.perf_counter() - begun, flush=True)
        else:
            with open(argument, "w", encoding="ascii") as out:
                for vertex, value in enumerate(values()):
                    if value < 1e300:
                        out.write(f"{vertex} {value!r}\n")
            print("written", flush=True)


main()
