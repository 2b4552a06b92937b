# ruff: noqa: E402, E501   (a notebook: imports where they are needed, prose in long lines, names on the ranks)

# %% [markdown] lang="en"
# # Draw it, run it, measure it
#
# A schedule says which rank does what, and in which order. Here you write one, break it, and see it refused. Then real ranks execute three published ones, and you count what they send and hold. At the end you put the predicted and the measured timeline one under the other.
#
# The theory is in the chapter [Pipeline parallelism](../../book/en/pipeline.md). The lab takes about half a minute to run and an hour to do. Before each cell that runs, write down your prediction.

# %% [markdown] lang="es"
# # Dibújalo, ejecútalo, mídelo
#
# Una planificación dice qué hace cada rank y en qué orden. Aquí vas a escribir una, romperla y ver cómo se rechaza. Después ranks de verdad ejecutan tres planificaciones publicadas, y tú cuentas lo que envían y lo que guardan. Al final pones la línea de tiempo predicha y la medida una debajo de la otra.
#
# La teoría está en el capítulo [Paralelismo de pipeline](../../book/es/pipeline.md). El laboratorio se ejecuta en medio minuto y se hace en una hora. Antes de cada celda que ejecuta algo, anota tu predicción.

# %% [markdown] lang="pt"
# # Desenhe, execute, meça
#
# Um agendamento diz o que cada rank faz e em que ordem. Aqui você vai escrever um, quebrá-lo e ver que ele é recusado. Depois ranks de verdade executam três agendamentos publicados, e você conta o que eles enviam e o que guardam. No fim você põe a linha do tempo prevista e a medida uma embaixo da outra.
#
# A teoria está no capítulo [Paralelismo de pipeline](../../book/pt/pipeline.md). O laboratório leva meio minuto para executar e uma hora para fazer. Antes de cada célula que executa algo, anote a sua previsão.

# %%
import torch
import torch.distributed as dist
from IPython.display import SVG

from paralelo.draw.timeline import timeline, timeline_mermaid
from paralelo.predict import pipeline as predict
from paralelo.predict.layout import chunk_layers
from paralelo.predict.pipeline import build, from_text, simulate
from paralelo.predict.pipeline import check as refuse
from paralelo.run import tensor, tutor
from paralelo.run.collectives import Ledger
from paralelo.run.lab import cases, check, findings, gap, knob, pick, table
from paralelo.run.measure import alone, seconds
from paralelo.run.pipeline import SleepingStage, Trace, run_step
from paralelo.run.ranks import Ranks, device
from paralelo.words import languages

# %% [markdown] lang="en"
# ## A schedule from actions
#
# One line is one rank. `F0` is the forward of microbatch 0 and `B0` its backward; rank 0 has the first stage and rank 1 the second. **Predict:** in units where a forward takes 1 and a backward 2, when does the last action end? How much of the time do the ranks wait?

# %% [markdown] lang="es"
# ## Una planificación hecha de acciones
#
# Cada línea es un rank. `F0` es el forward del microlote 0 y `B0` su backward; el rank 0 tiene la primera etapa y el rank 1 la segunda. **Predice:** si un forward dura 1 y un backward 2, ¿cuándo termina la última acción? ¿Qué parte del tiempo esperan los ranks?

# %% [markdown] lang="pt"
# ## Um agendamento feito de ações
#
# Cada linha é um rank. `F0` é o forward do microlote 0 e `B0` o seu backward; o rank 0 tem o primeiro estágio e o rank 1 o segundo. **Preveja:** se um forward dura 1 e um backward 2, quando termina a última ação? Em que parte do tempo os ranks ficam esperando?

# %%
mine = from_text("""
F0 F1 B0 F2 B1 B2
F0 B0 F1 B1 F2 B2
""")
findings(refuse(mine))
result = simulate(mine, forward=1, backward=2)
print(result.makespan, result.ideal, f"{result.idle_share:.3f}", result.live_activations, mine == build("1f1b", 2, 3))
SVG(timeline(result, None, name="mine"))

# %% [markdown] lang="en"
# Twelve units for nine units of work, so a quarter of the time is waiting. You have written 1F1B: it equals the one the library builds. `[2, 1]` are the **live activations**, the microbatches whose forward a rank has to keep at its worst moment.
#
# Now break it. Each line below has one fault. **Predict** what is wrong with it before you run the cell: something missing, something too early, or two ranks that wait for each other.

# %% [markdown] lang="es"
# Doce unidades para nueve de trabajo: la cuarta parte del tiempo es espera. Escribiste 1F1B: es igual a la que construye la biblioteca. `[2, 1]` son las **activaciones vivas**, los microlotes cuyo forward guarda cada rank en su peor momento.
#
# Ahora rómpela. Cada planificación de abajo tiene un fallo. **Predice** cuál es antes de ejecutar la celda: algo que falta, algo que ocurre demasiado pronto o dos ranks que se esperan el uno al otro.

# %% [markdown] lang="pt"
# Doze unidades para nove de trabalho: um quarto do tempo é espera. Você escreveu o 1F1B: ele é igual ao que a biblioteca constrói. `[2, 1]` são as **ativações vivas**, os microlotes cujo forward cada rank guarda no seu pior momento.
#
# Agora quebre-o. Cada agendamento abaixo tem uma falha. **Preveja** qual é essa falha antes de executar a célula: algo que falta, algo cedo demais ou dois ranks que esperam um pelo outro.

# %%
for text in ("F0 F1 B0 B1 / F0 B0 F1", "F0 F1 B0 B1 / B0 F0 F1 B1", "F0 B0 F1 B1 / F1 B1 F0 B0"):
    print(text)
    findings(refuse(from_text(text)))

# %% [markdown] lang="en"
# The third has every action and each rank's own order is possible. Only together do they hang: rank 0 waits for a backward that rank 1 does after a forward that rank 0 has not sent.
#
# One more way to hang does not show in any schedule. Suppose that a send waits until the other side receives. **Predict:** does 1F1B with two microbatches run? And what if a rank starts its send and its receive together?

# %% [markdown] lang="es"
# En la tercera están todas las acciones, y el orden de cada rank, por separado, es posible. Juntos se detienen: el rank 0 espera un backward que el rank 1 hace después de un forward que el rank 0 todavía no envió.
#
# Hay otra manera de quedarse detenido, que no se ve en ninguna planificación. Supón que un envío espera hasta que el otro lado reciba. **Predice:** ¿se ejecuta 1F1B con dos microlotes? ¿Y si un rank inicia juntos lo que envía y lo que recibe?

# %% [markdown] lang="pt"
# O terceiro tem todas as ações, e a ordem de cada rank em separado é possível. Só juntos eles travam: o rank 0 espera um backward que o rank 1 faz depois de um forward que o rank 0 ainda não enviou.
#
# Há outra maneira de travar, que não aparece em nenhum agendamento. Suponha que um envio espere até que o outro lado receba. **Preveja:** o 1F1B com dois microlotes é executado? E se um rank inicia juntos o que envia e o que recebe?

# %%
for sends in ("buffered", "rendezvous", "batched"):
    print(sends)
    findings(refuse(build("1f1b", 2, 2), sends))

# %% [markdown] lang="en"
# This is the classic deadlock of home-made pipelines, and it shows at the smallest possible size. The runtime of this course starts both directions together.
#
# ## Turn one knob
#
# Four ranks, 1F1B, and the number of microbatches $M$. Under the timeline are the idle share of the step, the idle time over the ideal time, and the live activations of ranks 0 to 3. **Predict** what happens to each of the three when $M$ doubles. The waiting in units of time does one thing, the two ratios another, and the memory a third.

# %% [markdown] lang="es"
# Es el interbloqueo (*deadlock*) clásico de los pipelines escritos a mano, en su tamaño más pequeño. El programa de este curso inicia juntas las dos direcciones.
#
# ## Mueve el control
#
# Cuatro ranks, 1F1B y el número de microlotes $M$. Debajo de la línea de tiempo están la fracción ociosa del paso, el tiempo ocioso sobre tiempo ideal y las activaciones vivas de los ranks 0 a 3. **Predice** qué le pasa a cada una de las tres cosas cuando $M$ se duplica. La espera en unidades de tiempo, los dos cocientes y la memoria no cambian de la misma manera.

# %% [markdown] lang="pt"
# É o impasse (*deadlock*) clássico dos pipelines caseiros, e aparece no menor tamanho possível. O programa deste curso inicia as duas direções juntas.
#
# ## Mova o controle
#
# Quatro ranks, 1F1B e o número de microlotes $M$. Embaixo da linha do tempo estão a fração ociosa do passo, o tempo ocioso sobre o tempo ideal e as ativações vivas dos ranks 0 a 3. **Preveja** o que acontece com cada uma das três coisas quando $M$ dobra. A espera em unidades de tempo faz uma coisa, os dois quocientes outra e a memória uma terceira.

# %% tags=["nbval-ignore-output"]
def drawn(M):
    return timeline({f"M = {M}": simulate(build("1f1b", 4, M))}, None, name=f"knob{M}", ratios=True)


knob(drawn, "M", [1, 2, 4, 8, 16, 32], start=4)

# %% [markdown] lang="en"
# The waiting is always 9 units on each rank: three forwards and three backwards that fill and drain. It is shared by more work, so both ratios fall. Memory stops growing at $M = 4$. GPipe has the same length, and its memory goes on growing with $M$.
#
# ## Real stages
#
# The grammar tutor, with four layers, over two ranks. Each stage is a run of consecutive layers; the first has the embedding too and the last the head. The two share one matrix, so both ranks hold a copy of it. Interleaved gives each rank two shorter stages instead of one. **Predict** which layers each rank gets.

# %% [markdown] lang="es"
# La espera es siempre de 9 unidades en cada rank: tres forwards y tres backwards de llenado y vaciado. Se reparte entre más trabajo, así que los dos cocientes bajan. La memoria deja de crecer en $M = 4$. GPipe dura lo mismo, y su memoria sigue creciendo con $M$.
#
# ## Etapas de verdad
#
# El tutor de gramática, con cuatro capas, en dos ranks. Cada etapa es una serie de capas seguidas; la primera tiene además el embedding y la última la capa de salida. Las dos comparten una matriz, así que los dos ranks guardan una copia. La planificación intercalada le da a cada rank dos etapas más cortas en lugar de una. **Predice** qué capas recibe cada rank.

# %% [markdown] lang="pt"
# A espera é sempre de 9 unidades em cada rank: três forwards e três backwards de enchimento e esvaziamento. Ela se reparte por mais trabalho, então os dois quocientes caem. A memória deixa de crescer em $M = 4$. O GPipe tem a mesma duração, e a memória dele continua crescendo com $M$.
#
# ## Estágios de verdade
#
# O tutor de gramática, com quatro camadas, em dois ranks. Cada estágio é uma série de camadas seguidas; o primeiro tem também o embedding e o último a camada de saída. Os dois compartilham uma matriz, então os dois ranks guardam uma cópia. O agendamento intercalado dá a cada rank dois estágios mais curtos em vez de um. **Preveja** quais camadas cada rank recebe.

# %%
N, M, L = 2, 4, 4
SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2))
two = Ranks(N)
model = tutor.make(seed=0, L=L).double()


def deal(model, schedule, rank):
    """The names and modules of each stage of a rank."""
    stages = []
    for stage, layers in zip(schedule.stages_of(rank), chunk_layers(L, N, schedule.chunks)[rank], strict=True):
        parts = {f"block {i}": model.blocks[i] for i in layers}
        if stage == 0:
            parts = {"embedding": model.embedding} | parts
        if stage == schedule.num_stages - 1:
            parts["head"] = model.head
        stages.append(parts)
    return stages


for name, C in SCHEDULES:
    schedule = build(name, N, M, C)
    for rank in range(N):
        print(name, f"rank {rank}", *(f"{s}: {', '.join(parts)}" for s, parts in
                                      zip(schedule.stages_of(rank), deal(model, schedule, rank), strict=True)), sep="   ")

# %% [markdown] lang="en"
# Every rank now runs its line of the schedule: the same object that was drawn above. **Predict** for each schedule the live activations of both ranks, the number of messages of a step, and the bytes: a message carries $B/M \cdot T \cdot D$ numbers of 8 bytes, and once a step the two ends exchange the gradient of their common matrix, 589 × 64. The loss and all gradients must equal those of the whole model on one device.

# %% [markdown] lang="es"
# Ahora cada rank ejecuta su línea de la planificación: el mismo objeto que se dibujó arriba. **Predice** para cada una las activaciones vivas de los dos ranks, el número de mensajes de un paso y los bytes: un mensaje lleva $B/M \cdot T \cdot D$ números de 8 bytes, y una vez por paso los dos extremos intercambian el gradiente de su matriz común, de 589 × 64. La pérdida y todos los gradientes deben ser iguales a los del modelo entero en un dispositivo.

# %% [markdown] lang="pt"
# Agora cada rank executa a sua linha do agendamento: o mesmo objeto que foi desenhado acima. **Preveja** para cada um as ativações vivas dos dois ranks, o número de mensagens de um passo e os bytes: uma mensagem leva $B/M \cdot T \cdot D$ números de 8 bytes, e uma vez por passo as duas pontas trocam o gradiente da sua matriz comum, de 589 × 64. A perda e todos os gradientes devem ser iguais aos do modelo inteiro em um dispositivo.

# %%
def step(schedule, model, tokens, targets, weights=None):
    group, here, rank = dist.group.WORLD, device(), dist.get_rank()
    model = model.to(here)
    parts = deal(model, schedule, rank)
    stages = [torch.nn.Sequential(*stage.values()) for stage in parts]
    ends = schedule.rank_of(0), schedule.rank_of(schedule.num_stages - 1)
    trace = Trace()
    with Ledger(pipeline=group) as ledger:
        loss = run_step(schedule, stages, tokens.to(here), targets.to(here), tutor.Head.loss, group, weights=weights,
                        tied=model.embedding.weight if rank in ends else None, trace=trace)
    measured = trace.gather(group)
    return {"loss": loss.item(), "sent": ledger["send"].payload, "live": measured.live_activations,
            "messages": measured.messages, "gradients": {k: p.grad for k, p in model.named_parameters() if p.grad is not None}}


def whole(tokens, targets):
    model.zero_grad()
    loss = model.loss(tokens, targets)
    loss.backward()
    return loss.item(), {k: p.grad.clone() for k, p in model.named_parameters()}


seen, _ = tutor.split()
tokens, targets = tutor.encode([q for q in seen if len(q.answer) == 1][:16])
dense_loss, dense = whole(tokens, targets)
model.zero_grad(set_to_none=True)
runs = {name: two.run(step, build(name, N, M, C), model, tokens, targets) for name, C in SCHEDULES}
for name, ranks in runs.items():
    together = set().union(*(r["gradients"] for r in ranks))
    equal = all(gap(g, dense[k]) < 1e-12 for r in ranks for k, g in r["gradients"].items())
    print(name, together == dense.keys(), equal, *(abs(r["loss"] - dense_loss) < 1e-12 for r in ranks), sep="   ")

# %%
(B, T), D, V = tokens.shape, model.shape.D, model.shape.V
rows = []
for name, C in SCHEDULES:
    p, m = simulate(build(name, N, M, C)), runs[name]
    rows += [(f"{name}, live {r}", p.live_activations[r], m[0]["live"][r]) for r in range(N)]
    rows.append((f"{name}, messages", p.messages, m[0]["messages"]))
    rows.append((f"{name}, B", p.messages * B // M * T * D * 8 + 2 * V * D * 8, sum(r["sent"] for r in m)))
table(*rows)

# %% [markdown] lang="en"
# The order of work changed no gradient. 1F1B keeps half of what GPipe keeps on rank 0 and a quarter on rank 1, and sends the same. Interleaved sends three times as many messages, $(SC-1)/(S-1) = 3$. The measured numbers come from autograd itself: a forward is live from the first tensor it saves until the last is freed.
#
# ## The timeline, predicted and measured
#
# Now the time. A stage here is four gated MLPs. First both ranks measure what one forward, $f$, and one backward, $b$, of a microbatch take. With these two numbers the simulator predicts the whole step. **Predict** which of the three schedules ends first, and by how much, with two ranks and eight microbatches.

# %% [markdown] lang="es"
# El orden del trabajo no cambió ningún gradiente. 1F1B guarda la mitad que GPipe en el rank 0 y la cuarta parte en el rank 1, y envía lo mismo. La intercalada envía el triple de mensajes, $(SC-1)/(S-1) = 3$. Los números medidos vienen del propio autograd: un forward está vivo desde el primer tensor que guarda hasta que se libera el último.
#
# ## La línea de tiempo, predicha y medida
#
# Ahora toca medir el tiempo. Aquí una etapa son cuatro MLP con compuerta. Primero los dos ranks miden cuánto tardan un forward, $f$, y un backward, $b$, de un microlote. Con esos dos números el simulador predice el paso entero. **Predice** cuál de las tres planificaciones termina primero, y por cuánto, con dos ranks y ocho microlotes.

# %% [markdown] lang="pt"
# A ordem do trabalho não mudou nenhum gradiente. O 1F1B guarda metade do que o GPipe guarda no rank 0 e um quarto no rank 1, e envia o mesmo. O intercalado envia o triplo de mensagens, $(SC-1)/(S-1) = 3$. Os números medidos vêm do próprio autograd: um forward está vivo desde o primeiro tensor que guarda até que o último seja liberado.
#
# ## A linha do tempo, prevista e medida
#
# Agora o tempo. Aqui um estágio são quatro MLPs com porta. Primeiro os dois ranks medem quanto demoram um forward, $f$, e um backward, $b$, de um microlote. Com esses dois números o simulador prevê o passo inteiro. **Preveja** qual dos três agendamentos termina primeiro, e por quanto, com dois ranks e oito microlotes.

# %% tags=["timed"]
D_timed, n_timed, M_timed = pick(cpu=(128, 128, 8), two_gpus=(4096, 2048, 8))


def mlps(share):
    return torch.nn.Sequential(*(tensor.MLP(D_timed, 4 * D_timed, device=device()) for _ in range(int(4 * share))))


def pace():
    """Milliseconds of one forward and one backward of a microbatch, both ranks at work."""
    group, here, stage = dist.group.WORLD, device(), mlps(1)
    x = torch.randn(n_timed, D_timed, device=here, requires_grad=True)
    f = min(seconds(lambda: stage(x), repeats=9, warmup=2, group=group, device=here))
    both = min(seconds(lambda: stage(x).sum().backward(), repeats=9, warmup=2, group=group, device=here))
    return 1e3 * f, 1e3 * (both - f)


def best(schedule, stage, x, repeats=7):
    """The shortest of several steps, as it was traced: whatever else the computer does only adds to it."""
    group, x = dist.group.WORLD, x.to(device())
    stages, steps = [stage(1 / schedule.chunks) for _ in range(schedule.chunks)], []
    for _ in range(repeats):
        trace = Trace(activations=False)
        run_step(schedule, stages, x, x, lambda y, _: y.square().mean(), group, trace=trace)
        steps.append(trace.gather(group))
    return min(steps, key=lambda step: step.makespan)


x_timed = torch.randn(M_timed * n_timed, D_timed)
predicted, measured = {}, {}
with alone():
    f, b = two.run(pace)[0]
    for name, C in SCHEDULES:
        schedule = build(name, N, M_timed, C)
        predicted[name] = simulate(schedule, f, b)
        measured[name] = two.run(best, schedule, mlps, x_timed)[0]

# %% tags=["nbval-ignore-output", "timed"]
SVG(timeline({f"{name}, {which}": of[name] for name, _ in SCHEDULES for which, of in (("p", predicted), ("m", measured))},
             None, name="real", unit="ms"))

# %% tags=["nbval-ignore-output", "timed"]
table(*((name, predicted[name].makespan, measured[name].makespan) for name, _ in SCHEDULES), unit="ms")

# %% [markdown] lang="en"
# Each pair has the same boxes in the same order, since one object was simulated and executed. Beside each label are the length of the step and its idle share. What the prediction leaves out are the messages and the cost of each action in Python. Interleaved has twice as many actions and three times as many messages, so it pays the most, and on small stages its gain is lost.
#
# ## More stages than cores
#
# Two ranks show little of a pipeline. Four on a computer with two cores would wait for the cores and not for each other. So four ranks run stages that sleep: 10 ms for a forward, 20 ms for a backward. What is measured then is the schedule, and nothing else. **Predict** the three lengths: the units of the chapter times 10 ms.

# %% [markdown] lang="es"
# Cada pareja tiene las mismas cajas en el mismo orden, porque se simuló y se ejecutó un solo objeto. Junto a cada nombre están la duración del paso y su fracción ociosa. La predicción no cuenta los mensajes ni lo que cuesta cada acción en Python. La intercalada tiene el doble de acciones y el triple de mensajes, así que es la que más lo nota, y con etapas pequeñas pierde lo que ganaba.
#
# ## Más etapas que núcleos
#
# Dos ranks muestran poco de un pipeline. Cuatro en una computadora con dos núcleos esperarían a los núcleos y no unos a otros. Por eso cuatro ranks ejecutan etapas que duermen: 10 ms por forward, 20 ms por backward. Lo que se mide entonces es la planificación y nada más. **Predice** las tres duraciones: las unidades del capítulo por 10 ms.

# %% [markdown] lang="pt"
# Cada par tem as mesmas caixas na mesma ordem, porque um só objeto foi simulado e executado. Ao lado de cada nome estão a duração do passo e a sua fração ociosa. A previsão deixa de fora as mensagens e o que cada ação custa em Python. O intercalado tem o dobro de ações e o triplo de mensagens, então é o que mais paga por isso, e com estágios pequenos perde o que ganhava.
#
# ## Mais estágios do que núcleos
#
# Dois ranks mostram pouco de um pipeline. Quatro em um computador com dois núcleos esperariam pelos núcleos, e não uns pelos outros. Por isso quatro ranks executam estágios que dormem: 10 ms por forward, 20 ms por backward. O que se mede então é o agendamento, e nada mais. **Preveja** as três durações: as unidades do capítulo vezes 10 ms.

# %% tags=["timed"]
def sleeping(share):
    return SleepingStage(0.010 * share, 0.020 * share)


slept = {}
with alone(), Ranks(4, device="cpu") as four:
    for name, C in SCHEDULES:
        schedule = build(name, 4, 8, C)
        slept[name] = simulate(schedule, 10, 20), four.run(best, schedule, sleeping, torch.ones(8, 1), 3)[0]

# %% tags=["nbval-ignore-output", "timed"]
SVG(timeline({f"{name}, {which}": result for name, both in slept.items() for which, result in zip("pm", both, strict=True)},
             None, name="slept", unit="ms"))

# %% tags=["nbval-ignore-output", "timed"]
table(*((name, p.makespan, m.makespan) for name, (p, m) in slept.items()), unit="ms")

# %% tags=["timed"]
assert all(0.99 < m.makespan / p.makespan < 2 for p, m in slept.values())

# %% [markdown] lang="en"
# GPipe and 1F1B end together, as predicted: 1F1B is no faster. It only keeps less. Interleaved ends earlier, since its fill takes steps half as long.
#
# ## Keep the drawing
#
# The same function that drew in this notebook writes the files of the course. The cell below writes one timeline in three languages, as a picture and as a Mermaid text, into the folder `drawn` beside this notebook.

# %% [markdown] lang="es"
# GPipe y 1F1B terminan a la vez, como se predijo: 1F1B no es más rápida. Solo guarda menos. La intercalada termina antes, porque los pasos de su llenado duran la mitad.
#
# ## Guarda el dibujo
#
# La misma función que dibujó en este notebook escribe los archivos del curso. La celda de abajo escribe una línea de tiempo en tres idiomas, como imagen y como texto de Mermaid, en la carpeta `drawn` junto a este notebook.

# %% [markdown] lang="pt"
# O GPipe e o 1F1B terminam juntos, como previsto: o 1F1B não é mais rápido. Ele só guarda menos. O intercalado termina antes, porque os passos do seu enchimento duram a metade.
#
# ## Guarde o desenho
#
# A mesma função que desenhou neste notebook escreve os arquivos do curso. A célula abaixo escreve uma linha do tempo em três idiomas, como imagem e como texto de Mermaid, na pasta `drawn` ao lado deste notebook.

# %%
from pathlib import Path

result, stem = simulate(build("1f1b", 4, 8)), "pipeline_1f1b_4_8"
for lang in languages():
    folder = Path("drawn", lang)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.svg").write_text(timeline(result, lang, name=stem, scale=21), encoding="utf-8")
    (folder / f"{stem}.mmd").write_text(timeline_mermaid(result, lang), encoding="utf-8")
    print(*(p.as_posix() for p in sorted(folder.glob(f"{stem}.*"))))

# %% [markdown] lang="en"
# ## Exercises
#
# Replace every `...` and run the cell; the check cell below it says `✓`, or what differs and which hint to read. Its value is your score.
#
# ### 1. Two ratios
#
# The function `ratios(S, M, C)` returns the idle share of the step and the idle time over the ideal time, in this order, for 1F1B ($C = 1$) and for interleaved when $S$ divides $M$.
#
# <details>
# <summary>Hint 1</summary>
#
# The waiting of a rank is worth $(S-1)/C$ microbatches, and its work is worth $M$. One ratio divides by the work alone, the other by work and waiting.
#
# </details>

# %% [markdown] lang="es"
# ## Ejercicios
#
# Reemplaza cada `...` y ejecuta la celda; la celda de comprobación que sigue dice `✓`, o qué difiere y qué pista leer. El valor que devuelve es tu puntaje.
#
# ### 1. Dos cocientes
#
# La función `ratios(S, M, C)` devuelve la fracción ociosa del paso y el tiempo ocioso sobre tiempo ideal, en este orden, para 1F1B ($C = 1$) y para la intercalada cuando $S$ divide a $M$.
#
# <details>
# <summary>Pista 1</summary>
#
# La espera de un rank vale $(S-1)/C$ microlotes y su trabajo vale $M$. Un cociente divide solo entre el trabajo; el otro, entre el trabajo y la espera.
#
# </details>

# %% [markdown] lang="pt"
# ## Exercícios
#
# Substitua cada `...` e execute a célula; a célula de verificação logo abaixo diz `✓`, ou o que difere e qual dica ler. O valor que ela devolve é a sua pontuação.
#
# ### 1. Dois quocientes
#
# A função `ratios(S, M, C)` devolve a fração ociosa do passo e o tempo ocioso sobre o tempo ideal, nesta ordem, para o 1F1B ($C = 1$) e para o intercalado quando $S$ divide $M$.
#
# <details>
# <summary>Dica 1</summary>
#
# A espera de um rank vale $(S-1)/C$ microlotes e o seu trabalho vale $M$. Um quociente divide só pelo trabalho; o outro, pelo trabalho e pela espera.
#
# </details>

# %%
def ratios(S, M, C):
    # BEGIN ANSWER
    wait = (S - 1) / C
    return wait / (M + wait), wait / M
    # WRONG
    return (S - 1) / (M + S - 1), (S - 1) / M
    # END ANSWER


# %%
cases(ratios, {(S, M, C): (float(predict.idle_share(S, M, C)), float(predict.idle_over_ideal(S, M, C)))
               for S, M, C in ((4, 16, 1), (8, 32, 1), (4, 8, 2))}, hint=1)

# %% [markdown] lang="en"
# ### 2. Write 1F1B
#
# The function `order(r, S, M)` returns the actions of rank $r$ of $S$ as a list of words: `["F0", "B0"]`. First the forwards that fill, then one forward and one backward in turn, then the backwards that are left. It must also be right when there are fewer microbatches than ranks.
#
# <details>
# <summary>Hint 2</summary>
#
# Rank $r$ runs $S - 1 - r$ forwards ahead, and never more than there are. Backward number $i$ comes after forward number $i$ plus what it is ahead.
#
# </details>

# %% [markdown] lang="es"
# ### 2. Escribe 1F1B
#
# La función `order(r, S, M)` devuelve las acciones del rank $r$ de $S$ como una lista de palabras: `["F0", "B0"]`. Primero los forwards de llenado, después un forward y un backward alternados, al final los backwards que quedan. También debe ser correcta cuando hay menos microlotes que ranks.
#
# <details>
# <summary>Pista 2</summary>
#
# El rank $r$ lleva $S - 1 - r$ forwards de ventaja, y nunca más de los que hay. El backward número $i$ viene después del forward número $i$ más esa ventaja.
#
# </details>

# %% [markdown] lang="pt"
# ### 2. Escreva o 1F1B
#
# A função `order(r, S, M)` devolve as ações do rank $r$ de $S$ como uma lista de palavras: `["F0", "B0"]`. Primeiro os forwards de enchimento, depois um forward e um backward alternados, no fim os backwards que restam. Ela também precisa estar certa quando há menos microlotes do que ranks.
#
# <details>
# <summary>Dica 2</summary>
#
# O rank $r$ tem $S - 1 - r$ forwards de vantagem, e nunca mais do que os que existem. O backward número $i$ vem depois do forward número $i$ mais essa vantagem.
#
# </details>

# %%
def order(r, S, M):
    # BEGIN ANSWER
    ahead = min(M, S - 1 - r)
    actions = [f"F{m}" for m in range(ahead)]
    for m in range(ahead, M):
        actions += [f"F{m}", f"B{m - ahead}"]
    return actions + [f"B{m}" for m in range(M - ahead, M)]
    # WRONG
    return [f"F{m}" for m in range(M)] + [f"B{m}" for m in range(M)]
    # END ANSWER


# %%
cases(order, {(r, S, M): str(build("1f1b", S, M)).splitlines()[r].split()
              for S, M in ((2, 3), (4, 6), (4, 2)) for r in range(S)}, hint=2)

# %% [markdown] lang="en"
# ### 3. What a rank holds
#
# The function `peak(line, C)` returns the live activations of a rank at its worst moment, in whole forwards of one microbatch. `line` is its line of a schedule with $C$ chunks, such as `"F0 F1 B0 B1"`; with several chunks the stage number comes first, `"0F0"`. Split backwards occur too.
#
# <details>
# <summary>Hint 3</summary>
#
# A forward adds $1/C$. A whole backward `B` takes it away. Of a split one, `W` does, because the gradient of the weights still needs the input of the stage.
#
# </details>

# %% [markdown] lang="es"
# ### 3. Lo que guarda un rank
#
# La función `peak(line, C)` devuelve las activaciones vivas de un rank en su peor momento, en forwards enteros de un microlote. `line` es su línea de una planificación con $C$ etapas virtuales, como `"F0 F1 B0 B1"`; si hay varias, la etapa va delante, `"0F0"`. También hay backwards divididos.
#
# <details>
# <summary>Pista 3</summary>
#
# Un forward suma $1/C$. Un backward entero, `B`, lo resta. En uno dividido lo resta `W`, porque el gradiente de los pesos todavía necesita la entrada de la etapa.
#
# </details>

# %% [markdown] lang="pt"
# ### 3. O que um rank guarda
#
# A função `peak(line, C)` devolve as ativações vivas de um rank no seu pior momento, em forwards inteiros de um microlote. `line` é a linha dele em um agendamento com $C$ estágios virtuais, como `"F0 F1 B0 B1"`; se há vários, o estágio vem na frente, `"0F0"`. Também há backwards divididos.
#
# <details>
# <summary>Dica 3</summary>
#
# Um forward soma $1/C$. Um backward inteiro, `B`, o subtrai. Em um dividido, quem subtrai é `W`, porque o gradiente dos pesos ainda precisa da entrada do estágio.
#
# </details>

# %%
def peak(line, C):
    # BEGIN ANSWER
    held = most = 0
    for action in line.split():
        held += ("F" in action) - ("B" in action or "W" in action)
        most = max(most, held)
    return most / C
    # WRONG
    return max(1, line.count("F") - line.count("W")) / C
    # END ANSWER


# %%
asked = [build("1f1b", 4, 8), build("gpipe", 2, 5), build("interleaved", 4, 8, 2), build("zb-h2", 4, 8)]
cases(peak, {(line, s.chunks): held for s in asked for line, held in
             zip(str(s).splitlines(), simulate(s).live_activations, strict=True)}, hint=3)

# %% [markdown] lang="en"
# ### 4. A mean of means
#
# Until now each microbatch had equally many tokens with a loss. Here they have 10, 10, 11 and 9, and `run_step` takes the mean of each microbatch's mean: not the mean over all tokens. The function `weights(counted)` returns the factor of each microbatch's loss, so that loss and gradients equal those of the whole batch on one device.
#
# <details>
# <summary>Hint 4</summary>
#
# The mean over all tokens is a sum over all tokens, divided once. A microbatch's mean times its number of tokens is its part of that sum.
#
# </details>

# %% [markdown] lang="es"
# ### 4. Un promedio de promedios
#
# Hasta ahora cada microlote tenía el mismo número de tokens con pérdida. Aquí tienen 10, 10, 11 y 9, y la función `run_step` toma el promedio de los promedios de los microlotes, que no es el promedio de todos los tokens. La función `weights(counted)` devuelve el factor de la pérdida de cada microlote, para que la pérdida y los gradientes sean iguales a los del lote entero en un dispositivo.
#
# <details>
# <summary>Pista 4</summary>
#
# El promedio de todos los tokens es una suma de todos los tokens, dividida una sola vez. El promedio de un microlote por su número de tokens es su parte de esa suma.
#
# </details>

# %% [markdown] lang="pt"
# ### 4. Uma média de médias
#
# Até agora cada microlote tinha o mesmo número de tokens com perda. Aqui eles têm 10, 10, 11 e 9, e a função `run_step` tira a média das médias dos microlotes, que não é a média de todos os tokens. A função `weights(counted)` devolve o fator da perda de cada microlote, para que a perda e os gradientes sejam iguais aos do lote inteiro em um dispositivo.
#
# <details>
# <summary>Dica 4</summary>
#
# A média de todos os tokens é uma soma de todos os tokens, dividida uma só vez. A média de um microlote vezes o seu número de tokens é a parte dele nessa soma.
#
# </details>

# %%
def weights(counted):
    # BEGIN ANSWER
    return [n / sum(counted) for n in counted]
    # WRONG
    return [1 / len(counted) for _ in counted]
    # END ANSWER


# %%
mixed = tutor.encode(seen[:: len(seen) // 16][:16])
counted = [int((part != tensor.IGNORE).sum()) for part in mixed[1].tensor_split(M)]
mixed_loss, mixed_dense = whole(*mixed)
model.zero_grad(set_to_none=True)


def with_weights():
    given = weights(counted)
    if given is None:
        return ...
    ranks = two.run(step, build("1f1b", N, M), model, *mixed, given)
    return [{"loss": r["loss"]} | {k: g.cpu() for k, g in r["gradients"].items()} for r in ranks]


expected = [{"loss": mixed_loss} | {k: mixed_dense[k] for k in r["gradients"]} for r in runs["1f1b"]]
check(with_weights, expected, hint=4, ranks=True, points=2)

# %% [markdown] lang="en"
# The ranks have done their work. Closing them frees their processes; without this cell they would end with the notebook.

# %% [markdown] lang="es"
# Los ranks terminaron su trabajo. Cerrarlos libera sus procesos; sin esta celda terminarían junto con el notebook.

# %% [markdown] lang="pt"
# Os ranks terminaram o seu trabalho. Fechá-los libera os processos; sem esta célula eles terminariam junto com o notebook.

# %%
two.close()
