# ruff: noqa: E501   (a notebook: imports where they are needed, prose in long lines)

# %% [markdown] lang="en"
# # Route, drop, balance, exchange
#
# A router sends each token to some of the experts, and the experts live on several ranks. You will predict who gets how many tokens and who sends how much to whom, then run it and count. You will also see a router that collapses, and a run that stops because one rank had nothing to do.
#
# The theory is in the chapter [Mixture of experts](../../book/en/experts.md). The lab takes about half a minute to run and an hour to do. Before each cell that runs, write down your prediction.

# %% [markdown] lang="es"
# # Enruta, descarta, balancea, intercambia
#
# Un enrutador envía cada token a algunos de los expertos, y los expertos están en varios ranks. Vas a predecir quién recibe cuántos tokens y quién le envía cuánto a quién; después lo ejecutas y lo cuentas. También verás un enrutador que colapsa y una ejecución que se detiene porque un rank no tenía nada que hacer.
#
# La teoría está en el capítulo [Mezcla de expertos](../../book/es/experts.md). El laboratorio se ejecuta en medio minuto y se hace en una hora. Antes de cada celda que ejecuta algo, anota tu predicción.

# %% [markdown] lang="pt"
# # Roteie, descarte, balanceie, troque
#
# Um roteador envia cada token a alguns dos especialistas, e os especialistas estão em vários ranks. Você vai prever quem recebe quantos tokens e quem envia quanto a quem; depois executa e conta. Você também vai ver um roteador que entra em colapso e uma execução que para porque um rank não tinha nada para fazer.
#
# A teoria está no capítulo [Mistura de especialistas](../../book/pt/experts.md). O laboratório leva meio minuto para executar e uma hora para fazer. Antes de cada célula que executa algo, anote a sua previsão.

# %%
from fractions import Fraction
from math import ceil

import torch
import torch.distributed as dist

from paralelo.predict import data
from paralelo.predict import experts as predict
from paralelo.run.collectives import Ledger
from paralelo.run.experts import ExpertParallelMoE, Experts, MoE, Router, balance_loss, synchronise
from paralelo.run.lab import cases, check, gap, knob, pick, table
from paralelo.run.ranks import RankError, Ranks, device

torch.set_num_threads(1)
N = pick(cpu=4, two_gpus=2)
ranks = Ranks(N)
E, k, D, F = 8, 2, 16, 32
print(ranks)

# %% [markdown] lang="en"
# ## Route
#
# A token has one logit for each expert. Take four experts, the logits 2, 1, 0 and −1, and $k = 2$. **Predict:** do the two weights add up to 1?

# %% [markdown] lang="es"
# ## Enruta
#
# Un token tiene un logit por experto. Toma cuatro expertos, los logits 2, 1, 0 y −1, y $k = 2$. **Predice:** ¿los dos pesos suman 1?

# %% [markdown] lang="pt"
# ## Roteie
#
# Um token tem um logit por especialista. Tome quatro especialistas, os logits 2, 1, 0 e −1, e $k = 2$. **Preveja:** os dois pesos somam 1?

# %%
for variant in predict.VARIANTS:
    routing = Router(D, 4, 2, variant=variant, dtype=torch.float64).route(torch.tensor([[2, 1, 0, -1]]).double())
    p = predict.choose([2, 1, 0, -1], 2, variant)
    m = list(zip(routing.experts[0].tolist(), routing.weights[0].tolist(), strict=True))
    print(f"{variant:27}", *(f"{e}: {w:.4f}" for e, w in m), f"Σ {sum(w for _, w in m):.4f}",
          all(e == f and abs(v - w) < 1e-12 for (e, v), (f, w) in zip(p, m, strict=True)))

# %% [markdown] lang="en"
# Four routers in use choose the same two experts and weight them in three ways. Only the first leaves a sum below 1: it preserves how confident the router was. A checkpoint loaded with the wrong rule gives slightly wrong answers, and nothing fails.
#
# ## Drop
#
# Now 16 tokens, 8 experts and $k = 2$, with a router that prefers the first experts. If an expert has room for $C$ assignments, those that come later are dropped. **Predict:** with 32 assignments, what is the smallest capacity factor at which none is dropped? And how many places are then empty?

# %% [markdown] lang="es"
# Cuatro enrutadores de modelos reales eligen los mismos dos expertos y les dan pesos de tres maneras. Solo el primero deja una suma menor que 1: conserva la confianza del enrutador. Un checkpoint cargado con la regla equivocada da respuestas algo equivocadas, y nada falla.
#
# ## Descartar
#
# Ahora 16 tokens, 8 expertos y $k = 2$, con un enrutador que prefiere los primeros expertos. Si en un experto caben $C$ asignaciones, las que llegan después se descartan. **Predice:** con 32 asignaciones, ¿cuál es el menor factor de capacidad con el que no se descarta ninguna? ¿Y cuántos lugares quedan vacíos entonces?

# %% [markdown] lang="pt"
# Quatro roteadores em uso escolhem os mesmos dois especialistas e lhes dão pesos de três maneiras. Só o primeiro deixa uma soma menor do que 1: ele preserva a confiança do roteador. Um checkpoint carregado com a regra errada dá respostas um pouco erradas, e nada falha.
#
# ## Descartar
#
# Agora 16 tokens, 8 especialistas e $k = 2$, com um roteador que prefere os primeiros especialistas. Se um especialista tem vaga para $C$ atribuições, as que chegam depois são descartadas. **Preveja:** com 32 atribuições, qual é o menor fator de capacidade com o qual nenhuma é descartada? E quantas vagas ficam vazias então?

# %% tags=["nbval-ignore-output"]
skewed = predict.draw(16, E, k, skew=1.0, seed=15)


def drops(cf):
    C, counts = skewed.capacity(cf), skewed.counts
    lost, empty = sum(predict.dropped(counts, C)), sum(max(0, C - n) for n in counts)
    lines = [f"cf = {cf}   C = {C}   ✗ {lost}/{sum(counts)}   · {empty}/{E * C}"]
    for e, n in enumerate(counts):
        lines.append(f"{e}   {'█' * min(n, C)}{'✗' * (n - C)}{'·' * (C - n)}")
    return "\n".join(lines)


knob(drops, "cf", [0.5, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0], start=1.25)

# %% [markdown] lang="en"
# Raise the factor, and fewer assignments are dropped but more places stay empty; those are sent and computed all the same. Both have the same cause: uneven experts. Capacity treats the symptom.
#
# ## The exchange
#
# The experts lie on ranks in order, and so do the tokens. The **exchange matrix** says how many assignments go from the tokens of each rank to the experts of each rank. It follows from the routing alone. A layer sends rows forward twice, out and back, and backward twice; each row has $D$ numbers of 8 bytes. Before that, each rank tells the others its $E$ counts. **Predict** from the matrix printed first what each rank sends to others.

# %% [markdown] lang="es"
# Si subes el factor, el descarte baja y aumentan los lugares vacíos, que se envían y se calculan igual. Las dos cosas tienen la misma causa: expertos desiguales. La capacidad trata el síntoma.
#
# ## El intercambio
#
# Los expertos están repartidos en orden entre los ranks, y los tokens también. La **matriz de intercambio** dice cuántas asignaciones van de los tokens de cada rank a los expertos de cada rank. Basta el enrutamiento para calcularla. Una capa envía filas dos veces en el forward, de ida y de vuelta, y dos en el backward; cada fila tiene $D$ números de 8 bytes. Antes, cada rank les dice a los demás cuántas filas va a enviar a cada uno de los $E$ expertos. **Predice**, con la matriz que se imprime primero, qué envía cada rank a los demás.

# %% [markdown] lang="pt"
# Se você aumenta o fator, o descarte cai e aumentam as vagas vazias, que são enviadas e calculadas do mesmo jeito. As duas coisas têm a mesma causa: especialistas desiguais. A capacidade trata o sintoma.
#
# ## A troca
#
# Os especialistas estão distribuídos em ordem pelos ranks, e os tokens também. A **matriz de troca** diz quantas atribuições vão dos tokens de cada rank para os especialistas de cada rank. Basta o roteamento para calculá-la. Uma camada envia linhas duas vezes no forward, na ida e na volta, e duas no backward; cada linha tem $D$ números de 8 bytes. Antes, cada rank diz aos outros as suas $E$ contagens. **Preveja**, com a matriz que é impressa primeiro, o que cada rank envia aos outros.

# %%
torch.manual_seed(0)
dense = MoE(D, F, E, k, dtype=torch.float64)
x, dy = torch.randn(2, 32, D, dtype=torch.float64)


def matrix(dense, x):
    """The exchange matrix of N ranks, predicted from what the dense router chooses."""
    with torch.no_grad():
        chosen = dense.router(x).experts.tolist()
    return predict.Routing(E, chosen).exchange(N)


def shown(matrix):
    for r, row in enumerate(matrix):
        print(f"rank {r}", *(f"{n:4}" for n in row), f"→ {sum(row)}")
    print("     ↓", *(f"{sum(column):4}" for column in zip(*matrix, strict=True)))


exchange = matrix(dense, x)
shown(exchange)

# %%
def layer(dense, xs, dys):
    """Forward and backward of one expert-parallel layer, with this rank's tokens."""
    group, here, rank = dist.group.WORLD, device(), dist.get_rank()
    moe = ExpertParallelMoE.from_dense(dense.to(here), group)
    x = xs[rank].to(here).requires_grad_()
    with Ledger(expert=group) as forward:
        y = moe(x)
    with Ledger(expert=group) as backward:
        y.backward(dys[rank].to(here))
    synchronise(moe, dense=group)
    return {"y": y.detach().cpu(), "dx": x.grad.cpu(), "gradients": {name: p.grad.cpu() for name, p in moe.named_parameters()},
            "row": [int(part.sum()) for part in moe.routing.counts.split(moe.held)],
            "sent": [ledger["all_to_all"].ring for ledger in (forward, backward)]}


split = ranks.run(layer, dense, x.chunk(N), dy.chunk(N))
print([part["row"] for part in split] == exchange)
rows = []
for r, part in enumerate(split):
    out = sum(exchange[r]) - exchange[r][r]                       # rows to others, and from them
    back = sum(row[r] for row in exchange) - exchange[r][r]
    counts = (E - len(predict.experts_of(E, N)[r])) * 8
    rows += [(f"rank {r}, forward", counts + (out + back) * D * 8, part["sent"][0]),
             (f"rank {r}, backward", (out + back) * D * 8, part["sent"][1])]
table(*rows, unit="B")

# %% [markdown] lang="en"
# The rows of the matrix are what a rank sends on the way out, the columns what it sends on the way back. A rank with popular experts has a large column, and all others wait for it.
#
# ## One rank as the judge
#
# The outputs and *every* gradient must equal those of the dense layer. A rank's experts have seen the tokens of all ranks, so their gradients are complete; those of the router are added. **Predict:** and if the last rank has no token at all?

# %% [markdown] lang="es"
# Las filas de la matriz son lo que un rank envía a la ida, y las columnas lo que envía a la vuelta. Un rank con expertos populares tiene una columna grande, y todos los demás lo esperan.
#
# ## Un solo rank como juez
#
# Las salidas y *todos* los gradientes deben ser iguales a los de la capa densa. Los expertos de un rank vieron los tokens de todos los ranks, así que sus gradientes están completos; los del enrutador se suman. **Predice:** ¿y si el último rank no tiene ningún token?

# %% [markdown] lang="pt"
# As linhas da matriz são o que um rank envia na ida, e as colunas o que ele envia na volta. Um rank com especialistas populares tem uma coluna grande, e todos os outros esperam por ele.
#
# ## Um só rank como juiz
#
# As saídas e *todos* os gradientes devem ser iguais aos da camada densa. Os especialistas de um rank viram os tokens de todos os ranks, então os seus gradientes estão completos; os do roteador são somados. **Preveja:** e se o último rank não tiver nenhum token?

# %%
def equal(dense, x, dy, parts):
    """Whether outputs, router, experts and input gradients of all ranks are the dense ones."""
    dense.zero_grad()
    leaf = x.clone().requires_grad_()
    y = dense(leaf)
    y.backward(dy)
    of_experts = {name: torch.cat([part["gradients"][name] for part in parts])
                  for name in parts[0]["gradients"] if name.startswith("experts")}
    return {"y": gap(torch.cat([part["y"] for part in parts]), y.detach()) < 1e-12,
            "dx": gap(torch.cat([part["dx"] for part in parts]), leaf.grad) < 1e-12,
            "router": all(gap(part["gradients"]["router.weight"], dense.router.weight.grad) < 1e-12 for part in parts),
            "experts": all(gap(g, dense.get_parameter(name).grad) < 1e-12 for name, g in of_experts.items())}


print(equal(dense, x, dy, split))
sizes = [32 // (N - 1) + (r < 32 % (N - 1)) for r in range(N - 1)] + [0]
dense.zero_grad(set_to_none=True)
split = ranks.run(layer, dense, x.split(sizes), dy.split(sizes))
print(sizes, [part["row"] for part in split][-1], equal(dense, x, dy, split))

# %% [markdown] lang="en"
# The rank without tokens sent nothing for itself and did the experts' work for the others. It took part in every exchange.
#
# Now the other case: a rank whose *experts* get nothing. A bias keeps all tokens away from the last rank. And, as happened in a real program, the experts return a new tensor of zeros when no row came. The shape is right. **Predict:** what happens in the forward? And in the backward, on each rank?

# %% [markdown] lang="es"
# El rank sin tokens no envió nada suyo e hizo el trabajo de sus expertos para los demás. Participó en todos los intercambios.
#
# Ahora el otro caso: un rank cuyos *expertos* no reciben nada. Un sesgo aleja todos los tokens del último rank. Y, como ocurrió en un programa real, los expertos devuelven un tensor nuevo de ceros cuando no llegó ninguna fila. La forma es correcta. **Predice:** ¿qué pasa en el forward? ¿Y en el backward, en cada rank?

# %% [markdown] lang="pt"
# O rank sem tokens não enviou nada seu e fez o trabalho dos seus especialistas para os outros. Ele participou de todas as trocas.
#
# Agora o outro caso: um rank cujos *especialistas* não recebem nada. Um bias afasta todos os tokens do último rank. E, como aconteceu em um programa real, os especialistas devolvem um tensor novo de zeros quando nenhuma linha chegou. O formato está certo. **Preveja:** o que acontece no forward? E no backward, em cada rank?

# %%
def one_step(dense, xs, forget):
    class Forgetful(Experts):
        def forward(self, x, counts):
            return super().forward(x, counts) if len(x) else torch.zeros_like(x)

    group, here, rank = dist.group.WORLD, device(), dist.get_rank()
    moe = ExpertParallelMoE.from_dense(dense.to(here), group)
    if forget:
        moe.experts.__class__ = Forgetful
    x = xs[rank].to(here).requires_grad_()
    y = moe(x)
    y.sum().backward()
    return 0 if x.grad is None else x.grad.sum().item()


torch.manual_seed(0)
lonely = MoE(D, F, E, k, router=Router(D, E, k, variant="sigmoid_bias", dtype=torch.float64), dtype=torch.float64)
lonely.router.bias[predict.experts_of(E, N)[-1].start:] = -10
shown(matrix(lonely, x))
for forget in (False, True):
    try:
        ranks.run(one_step, lonely, x.chunk(N), forget, timeout=4)
        print("✓")
    except RankError as error:
        print("✗", *(f"rank {r}: {state.kind}" for r, state in enumerate(error.states)), sep="   ")

# %% [markdown] lang="en"
# The forward is right. In the backward the last rank finds no way from its output to the exchange, so it is `done` and the others wait for it: `silent`, until the timeout ends them. The fix is to return what came in, with zero rows. (The ranks have been started again; the next call works.)
#
# ## Train a router
#
# A layer learns a fixed function of its tokens, 200 steps with Adam, three times from the same numbers: without any balancing, with the balance loss times 0.1, and with a bias that moves by 0.01 per step. An expert that is chosen learns, and one that has learned is chosen. **Predict** for each: how many of the eight experts are still in use at the end? Which of the last two ends with the lower error?

# %% [markdown] lang="es"
# El forward es correcto. En el backward el último rank no encuentra camino desde su salida hasta el intercambio, así que termina (`done`) y los demás lo esperan en silencio (`silent`) hasta que el límite de tiempo los detiene. El arreglo es devolver lo que llegó, con cero filas. (Los ranks se iniciaron de nuevo; la llamada siguiente funciona.)
#
# ## Entrena un enrutador
#
# Una capa aprende una función fija de sus tokens, 200 pasos con Adam, tres veces desde los mismos números: sin ningún balanceo, con la pérdida de balanceo multiplicada por 0.1 y con un sesgo que se mueve 0.01 por paso. El experto al que se elige aprende, y al que aprendió se lo elige más. **Predice** para cada caso: ¿cuántos de los ocho expertos siguen en uso al final? ¿Cuál de los dos últimos termina con menos error?

# %% [markdown] lang="pt"
# O forward está certo. No backward o último rank não encontra caminho da sua saída até a troca, então ele termina (`done`) e os outros esperam em silêncio (`silent`) até que o limite de tempo os interrompa. O conserto é devolver o que chegou, com zero linhas. (Os ranks foram iniciados de novo; a próxima chamada funciona.)
#
# ## Treine um roteador
#
# Uma camada aprende uma função fixa dos seus tokens, 200 passos com Adam, três vezes a partir dos mesmos números: sem nenhum balanceamento, com a perda de balanceamento vezes 0,1 e com um bias que se move 0,01 por passo. Um especialista escolhido aprende, e um que aprendeu é escolhido. **Preveja** para cada caso: quantos dos oito especialistas ainda estão em uso no fim? Qual dos dois últimos termina com menos erro?

# %%
def train(variant, alpha=0.0, rate=0.0, steps=200, n=128):
    """A layer after training, what its router chose in each step, and the error of the last."""
    torch.manual_seed(0)
    moe = MoE(D, F, E, k, router=Router(D, E, k, variant=variant, dtype=torch.float64), dtype=torch.float64)
    draw = torch.Generator().manual_seed(1)
    teacher = torch.randn(D, D, dtype=torch.float64, generator=draw) / D**0.5
    optimizer, chosen = torch.optim.Adam(moe.parameters(), lr=0.01), []
    for _ in range(steps):
        x = 1 + torch.randn(n, D, dtype=torch.float64, generator=draw)
        error = (moe(x) - torch.tanh(x @ teacher)).square().mean()
        optimizer.zero_grad()
        (error + alpha * balance_loss(moe.routing)).backward()
        optimizer.step()
        chosen.append(moe.routing.counts)
        if rate:
            moe.router.balance(chosen[-1], rate)
    return moe, torch.stack(chosen), error.item()


trained = {"–": train("softmax_topk"), "α": train("softmax_topk", alpha=0.1), "b": train("sigmoid_bias", rate=0.01)}
last = {name: chosen[-20:].sum(0) for name, (_, chosen, _) in trained.items()}
in_use = {name: int((counts > counts.sum() / E / 10).sum()) for name, counts in last.items()}
print(in_use["–"] <= E // 2, in_use["α"] == E, in_use["b"] == E, trained["b"][2] < trained["α"][2])

# %% tags=["nbval-ignore-output"]
for name, (_, chosen, error) in trained.items():
    print(f"{name}   {in_use[name]}/{E}   {error:.4f}")
    for step in (0, 50, 100, 199):
        print(f"  {step:3}", *(f"{n:4}" for n in chosen[step].tolist()))

# %% [markdown] lang="en"
# Without balancing the router collapses onto a few experts; the others cost memory and learn nothing. Both remedies keep all eight in use. The loss pulls at the router with a gradient that has nothing to do with the task, and the bias only chooses. Read the errors honestly: the collapsed layer has the smallest, because for so small a function two experts are enough. What it lost is the capacity of the other six.
#
# A collapsed router is also a slow one. Here are the exchange matrices of fresh tokens for the first and the last. **Predict** the ratio between the largest column and the mean: it is how much longer the busiest rank works.

# %% [markdown] lang="es"
# Sin balanceo el enrutador colapsa en unos pocos expertos; los demás cuestan memoria y no aprenden nada. Los dos remedios mantienen los ocho en uso. La pérdida tira del enrutador con un gradiente que no tiene nada que ver con la tarea, y el sesgo solo elige. Lee los errores con cuidado: el menor es el de la capa colapsada, porque para una función tan pequeña bastan dos expertos. Lo que perdió es la capacidad de los otros seis.
#
# Un enrutador colapsado también es lento. Aquí están las matrices de intercambio de tokens nuevos para el primero y el último. **Predice** el cociente entre la columna mayor y el promedio: indica cuánto trabaja de más el rank más ocupado.

# %% [markdown] lang="pt"
# Sem balanceamento o roteador entra em colapso sobre poucos especialistas; os outros custam memória e não aprendem nada. Os dois remédios mantêm os oito em uso. A perda puxa o roteador com um gradiente que nada tem a ver com a tarefa, e o bias só escolhe. Leia os erros com honestidade: o menor é o da camada em colapso, porque para uma função tão pequena dois especialistas bastam. O que ela perdeu é a capacidade dos outros seis.
#
# Um roteador em colapso também é lento. Aqui estão as matrizes de troca de tokens novos para o primeiro e o último. **Preveja** o quociente entre a maior coluna e a média: é quanto o rank mais ocupado trabalha a mais.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(2)
fresh, rows = 1 + torch.randn(128, D, dtype=torch.float64), []
for name in ("–", "b"):
    p, moe = matrix(trained[name][0], fresh), trained[name][0]
    shown(p)
    moe.zero_grad(set_to_none=True)
    m = [part["row"] for part in ranks.run(layer, moe, fresh.chunk(N), torch.ones_like(fresh).chunk(N))]
    busiest = [max(map(sum, zip(*found, strict=True))) * N / (128 * k) for found in (p, m)]
    rows.append((f"{name}   max/mean", *busiest))
table(*rows)

# %% [markdown] lang="en"
# ## Exercises
#
# Replace every `...` and run the cell; the check cell below it says `✓`, or what differs and which hint to read. Its value is your score.
#
# ### 1. Room
#
# The function `room(n, E, k, cf)` returns the capacity of an expert for $n$ tokens: $\min(n, \lceil cf \cdot k \cdot n / E \rceil)$, exactly. The factor is given as it is written: 1.1 means 11/10.
#
# <details>
# <summary>Hint 1</summary>
#
# The float 1.1 is a little above 11/10, and the ceiling turns that excess into one more place. `Fraction(str(cf))` is exact. Do not forget the minimum.
#
# </details>

# %% [markdown] lang="es"
# ## Ejercicios
#
# Reemplaza cada `...` y ejecuta la celda; la celda de comprobación que sigue dice `✓`, o qué difiere y qué pista leer. El valor que devuelve es tu puntaje.
#
# ### 1. Lugares
#
# La función `room(n, E, k, cf)` devuelve la capacidad de un experto para $n$ tokens: $\min(n, \lceil cf \cdot k \cdot n / E \rceil)$, exacta. El factor vale lo que está escrito: 1.1 significa 11/10.
#
# <details>
# <summary>Pista 1</summary>
#
# El float 1.1 es un poco mayor que 11/10, y el redondeo hacia arriba convierte ese exceso en un lugar más. La expresión `Fraction(str(cf))` es exacta. No olvides el mínimo.
#
# </details>

# %% [markdown] lang="pt"
# ## Exercícios
#
# Substitua cada `...` e execute a célula; a célula de verificação logo abaixo diz `✓`, ou o que difere e qual dica ler. O valor que ela devolve é a sua pontuação.
#
# ### 1. Vagas
#
# A função `room(n, E, k, cf)` devolve a capacidade de um especialista para $n$ tokens: $\min(n, \lceil cf \cdot k \cdot n / E \rceil)$, exata. O fator vale o que está escrito: 1.1 significa 11/10.
#
# <details>
# <summary>Dica 1</summary>
#
# O float 1.1 é um pouco maior do que 11/10, e o arredondamento para cima transforma esse excesso em uma vaga a mais. A expressão `Fraction(str(cf))` é exata. Não esqueça o mínimo.
#
# </details>

# %%
def room(n, E, k, cf):
    # BEGIN ANSWER
    return min(n, ceil(Fraction(str(cf)) * k * n / E))
    # WRONG
    return ceil(cf * k * n / E)
    # END ANSWER


# %%
cases(room, {(n, E, k, cf): predict.capacity(n, E, k, cf)
             for n, E, k, cf in ((16, 8, 2, 1.25), (100, 10, 1, 1.1), (4, 2, 1, 4), (10, 4, 1, 1))}, hint=1)

# %% [markdown] lang="en"
# ### 2. The balance loss
#
# The function `balance(counts, P)` returns $E \sum_e f_e P_e$. `counts` are the assignments of each expert, $k$ for every token, and `P` the mean probabilities. It must be 1 at balance, whatever $k$ is.
#
# <details>
# <summary>Hint 2</summary>
#
# $f$ is a share of the assignments, so it sums to 1. Divided by the number of tokens instead, it would sum to $k$.
#
# </details>

# %% [markdown] lang="es"
# ### 2. La pérdida de balanceo
#
# La función `balance(counts, P)` devuelve $E \sum_e f_e P_e$. `counts` son las asignaciones de cada experto, $k$ por token, y `P` las probabilidades medias. Con la carga balanceada debe ser 1, sea cual sea $k$.
#
# <details>
# <summary>Pista 2</summary>
#
# $f$ es una parte de las asignaciones, así que suma 1. Dividida por el número de tokens sumaría $k$.
#
# </details>

# %% [markdown] lang="pt"
# ### 2. A perda de balanceamento
#
# A função `balance(counts, P)` devolve $E \sum_e f_e P_e$. `counts` são as atribuições de cada especialista, $k$ por token, e `P` as probabilidades médias. No equilíbrio ela deve ser 1, qualquer que seja $k$.
#
# <details>
# <summary>Dica 2</summary>
#
# $f$ é uma parte das atribuições, então soma 1. Dividida pelo número de tokens, ela somaria $k$.
#
# </details>

# %%
def balance(counts, P):
    # BEGIN ANSWER
    return len(counts) * sum(c / sum(counts) * p for c, p in zip(counts, P, strict=True))
    # WRONG
    return sum(c * p for c, p in zip(counts, P, strict=True))
    # END ANSWER


# %%
cases(balance, {(c, P): predict.balance_of(c, P) for c, P in (
    ((4, 4, 4, 4), (0.25,) * 4), ((8, 0), (1.0, 0.0)), ((1, 3), (0.75, 0.25)), (tuple(skewed.counts), tuple(skewed.P)))}, hint=2)

# %% [markdown] lang="en"
# ### 3. The exchange matrix
#
# The function `sends(choices, E, N)` returns the matrix as a list of rows. `choices` has for every token the experts it chose; $N$ divides the number of tokens and of experts. Row $s$, column $t$: assignments of rank $s$'s tokens to rank $t$'s experts.
#
# <details>
# <summary>Hint 3</summary>
#
# With $n$ tokens, token $i$ is on rank $i \div (n/N)$, rounded down, and expert $e$ on rank $e \div (E/N)$. A row is what a rank sends; with rows and columns swapped, it would be what the rank receives.
#
# </details>

# %% [markdown] lang="es"
# ### 3. La matriz de intercambio
#
# La función `sends(choices, E, N)` devuelve la matriz como una lista de filas. `choices` tiene, para cada token, los expertos que eligió; $N$ divide al número de tokens y al de expertos. Fila $s$, columna $t$: asignaciones de los tokens del rank $s$ a los expertos del rank $t$.
#
# <details>
# <summary>Pista 3</summary>
#
# Con $n$ tokens, el token $i$ está en el rank $i \div (n/N)$, redondeado hacia abajo, y el experto $e$ en el rank $e \div (E/N)$. Una fila es lo que envía un rank; si se intercambian filas y columnas, es lo que recibe.
#
# </details>

# %% [markdown] lang="pt"
# ### 3. A matriz de troca
#
# A função `sends(choices, E, N)` devolve a matriz como uma lista de linhas. `choices` tem, para cada token, os especialistas que ele escolheu; $N$ divide o número de tokens e o de especialistas. Linha $s$, coluna $t$: atribuições dos tokens do rank $s$ aos especialistas do rank $t$.
#
# <details>
# <summary>Dica 3</summary>
#
# Com $n$ tokens, o token $i$ está no rank $i \div (n/N)$, arredondado para baixo, e o especialista $e$ no rank $e \div (E/N)$. Uma linha é o que um rank envia; com linhas e colunas trocadas, é o que ele recebe.
#
# </details>

# %%
def sends(choices, E, N):
    # BEGIN ANSWER
    matrix = [[0] * N for _ in range(N)]
    for i, experts in enumerate(choices):
        for e in experts:
            matrix[i * N // len(choices)][e * N // E] += 1
    return matrix
    # WRONG
    matrix = [[0] * N for _ in range(N)]
    for i, experts in enumerate(choices):
        for e in experts:
            matrix[e * N // E][i * N // len(choices)] += 1
    return matrix
    # END ANSWER


# %%
choices = tuple(map(tuple, skewed.choices))
cases(sends, {(choices, E, n): skewed.exchange(n) for n in (2, 4, 8)}, hint=3)

# %% [markdown] lang="en"
# ### 4. An exact factor
#
# Every rank takes the mean over its own tokens as its loss. There are $dp$ ranks with tokens, and the experts lie over $ep$ of them, so each expert has $dp/ep$ copies. The function `divisor(dp, ep)` returns what an expert's gradient, added over its copies, is divided by, to equal that of the mean over all tokens. The check runs it on ranks.
#
# <details>
# <summary>Hint 4</summary>
#
# The sum over $ep$ ranks has happened in the exchange and the one over the copies after it: together over all $dp$. Code that divides only by the number of copies gets a gradient $ep$ times too large, and Adam hides it.
#
# </details>

# %% [markdown] lang="es"
# ### 4. Un factor exacto
#
# Cada rank toma como pérdida el promedio de sus propios tokens. Hay $dp$ ranks con tokens y los expertos están repartidos entre $ep$ de ellos, así que cada experto tiene $dp/ep$ copias. La función `divisor(dp, ep)` devuelve el número entre el que se divide el gradiente de un experto, ya sumado sobre sus copias, para que sea igual al del promedio de todos los tokens. La comprobación lo ejecuta en los ranks.
#
# <details>
# <summary>Pista 4</summary>
#
# La suma sobre $ep$ ranks ya ocurrió en el intercambio, y la de las copias después: juntas, sobre los $dp$. El código que divide solo entre el número de copias obtiene un gradiente $ep$ veces mayor de lo debido, y Adam lo oculta.
#
# </details>

# %% [markdown] lang="pt"
# ### 4. Um fator exato
#
# Cada rank toma como perda a média dos seus próprios tokens. Há $dp$ ranks com tokens e os especialistas estão distribuídos por $ep$ deles, então cada especialista tem $dp/ep$ cópias. A função `divisor(dp, ep)` devolve o número pelo qual se divide o gradiente de um especialista, já somado sobre as suas cópias, para que seja igual ao da média de todos os tokens. A verificação o executa nos ranks.
#
# <details>
# <summary>Dica 4</summary>
#
# A soma sobre $ep$ ranks já aconteceu na troca, e a das cópias depois: juntas, sobre os $dp$. O código que divide só pelo número de cópias obtém um gradiente $ep$ vezes maior do que o devido, e o Adam esconde isso.
#
# </details>

# %%
def divisor(dp, ep):
    # BEGIN ANSWER
    return dp
    # WRONG
    return dp // ep
    # END ANSWER


# %%
def mean_loss(dense, xs, by):
    moe = ExpertParallelMoE.from_dense(dense.to(device()), dist.group.WORLD)
    moe(xs[dist.get_rank()].to(device())).square().mean().backward()
    return (moe.experts.down.grad / by).cpu()


def divided():
    by = divisor(N, N)
    return ... if by is None else ranks.run(mean_loss, dense, x.chunk(N), by, timeout=20)


dense.zero_grad()
dense(x).square().mean().backward()
expected = list(dense.experts.down.grad.clone().split([len(held) for held in predict.experts_of(E, N)]))
dense.zero_grad(set_to_none=True)
assert data.expert_gradient_factor(N, N) == Fraction(1, N)
check(divided, expected, hint=4, ranks=True, points=2)

# %% [markdown] lang="en"
# The ranks have done their work. Closing them frees their processes; without this cell they would end with the notebook.

# %% [markdown] lang="es"
# Los ranks terminaron su trabajo. Cerrarlos libera sus procesos; sin esta celda terminarían junto con el notebook.

# %% [markdown] lang="pt"
# Os ranks terminaram o seu trabalho. Fechá-los libera os processos; sem esta célula eles terminariam junto com o notebook.

# %%
ranks.close()
